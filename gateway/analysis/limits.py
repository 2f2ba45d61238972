"""Limits fixed in advance: which cells are tested, and which effects count as findings."""

FALSE_DISCOVERY_RATE = 0.05
LEAST_SOURCES = 12  # source images of a cell; below: "too few images"
BEYOND = 0.05  # an effect of at most 5 points is no finding, however certain
