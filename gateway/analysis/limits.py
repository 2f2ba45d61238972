"""Limits fixed in advance: which cells are tested, and which effects count as findings."""

from shared.schemas.effects import BEYOND as BEYOND
from shared.schemas.effects import LEAST_SOURCES as LEAST_SOURCES

FALSE_DISCOVERY_RATE = 0.05
LEAST_OF_CLASS = 30  # judged counterfactuals of a class from which the errors of the checks on it are its own
SAME_PAIRS = 0.9  # of what a finding's pairs lose (or gain): with so much in a stronger one's pairs, both are one
