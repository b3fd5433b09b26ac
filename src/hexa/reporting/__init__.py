"""What runs did, for people: figures, tables, galleries of hard examples, one self-contained page."""
