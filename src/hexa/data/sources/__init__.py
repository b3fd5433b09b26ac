"""Sources of images: folders, tables, archives and known data sets, with decoding and labels."""
