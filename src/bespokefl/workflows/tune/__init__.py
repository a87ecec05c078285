"""Choose hyper-parameters on validation data.

api               `bespokefl.tune`: train every point of a grid and choose the best
grid              the points of a grid
schedule          successive halving over rounds, and widening of grids
duration          times such as "10m"
result            `Tuning`: scores of all points and the choice, in memory and on disk
shared_settings   settings that all trainings of a tuning or comparison have in common
"""
