"""Steps replayed on a copy after the script's last one."""
