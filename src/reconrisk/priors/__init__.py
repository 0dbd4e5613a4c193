"""What the adversary believes about records before any release."""
