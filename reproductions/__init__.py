"""Results of the papers, computed again: one folder per paper, one script per figure or table."""
