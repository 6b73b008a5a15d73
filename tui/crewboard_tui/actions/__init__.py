"""Actions that keys start on the selection of a view: for agents, tasks, messages and requests, and the search.

A view offers groups of actions. An action is handed the selection and asks the app to open a view by its name.
"""
