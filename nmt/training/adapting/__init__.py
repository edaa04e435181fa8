"""Adapting: which weights of a model learn, and few that are added to it.

Knows models and their weights by name; knows no update. The modules in import order:

    configs             The configs of ways to train few weights, and their table; no torch.
    freezing            Weights that do not learn, by patterns of their names.
    adaptation          Few weights that learn beside those of another run.
    lora                LoRA: products of two thin matrices beside matrices that stay as they are.
    adapters            Narrow residual blocks behind the layers of a stack.
"""
