"""What exchanges between devices cost, by formula."""
