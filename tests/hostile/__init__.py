"""Input that means harm: files, archives, names, specs, messages, each with the one answer that it must get."""
