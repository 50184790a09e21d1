"""What a host is asked, and what its answers mean. Nothing here changes a host."""
