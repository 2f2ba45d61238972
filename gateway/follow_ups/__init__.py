"""A second job, with an unrelated editor, that tests the findings of a job again."""
