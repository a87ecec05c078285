"""One module per group of commands.

run            `bespoke run` and `bespoke resume`
tune           `bespoke tune`
compare        `bespoke compare` and `bespoke report`
diagnose       `bespoke diagnose`
newcomers      `bespoke personalize` and `bespoke predict`
export         `bespoke export`
deploy         `bespoke deploy`
deploy_models  `bespoke deploy predict` and `bespoke deploy export`
data           `bespoke data`
split          `bespoke split`
show           what is built in: methods, models and a demonstration
new            `bespoke new`: a method or a project to start from
evidence       `bespoke reproduce` and `bespoke bench`
"""
