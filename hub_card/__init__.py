"""Model cards for the Hub."""
