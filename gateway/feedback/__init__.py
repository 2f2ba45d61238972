"""What people say about a job: questions about its items, answers by somebody, and which item comes next.

`reviews` are verdicts on counterfactuals, `marks` say what own images show, `notes` are about findings, and `studies`
ask many `raters` who see nothing that gives an answer away.
"""
