"""One speed-up a file, told as a change of the recipe; RUNGS lists them in climbing order."""
