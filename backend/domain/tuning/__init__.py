"""The search for the best stack: engine x weights x speculation x cache x settings, within limits and a budget. Pure.

`stacks` is the space as data, `request` what a person asks for, `trials` what was measured, `search` chooses the next
step, and `ranking` says who won and, for each other stack, why it lost.
"""
