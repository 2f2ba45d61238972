"""Limits fixed in advance: which cells are tested, and which effects count as findings."""

FALSE_DISCOVERY_RATE = 0.05
LEAST_SOURCES = 12  # source images of a tested cell; a cell with fewer has "too few images"
BEYOND = 0.05  # a finding's effect is larger than 5 points
LEAST_OF_CLASS = 30  # judged counterfactuals of a class from which the errors of the checks on it are its own
