"""Forward maps from a record to what leaves the machine, with their derivatives."""
