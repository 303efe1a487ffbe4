"""The reference target: plain PyTorch, against which every other one is measured."""
