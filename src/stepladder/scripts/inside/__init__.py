"""What runs in the process of the script: settings, the gate at each step, a private folder."""
