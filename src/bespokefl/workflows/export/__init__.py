"""Export a model to files that other programs read, with its preprocessing and a model card.

api         `export`: one model of a run; `Exporter`: several of them
inputs      what an exported model takes, and how examples are preprocessed
graph       the module that is exported: preprocessing, model, probabilities
formats     TorchScript, ONNX and safetensors: writing, and reading again
checking    compares an exported file with the model, on real examples or random ones
model_card  the model card as JSON and Markdown
"""
