"""Reports of runs for people: figures, tables, galleries of hard examples, one self-contained page."""
