"""Scripts of several processes: what each rank records, and one report over all of them."""
