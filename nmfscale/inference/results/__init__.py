"""What all results share: tables, files, the origin of their labels."""
