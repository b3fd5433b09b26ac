"""Where images come from: sources by name, and how their files are decoded."""
