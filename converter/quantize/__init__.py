"""Quantisation recipes: which layers are stored, and computed, in which form. Data, no code."""

from converter.quantize.recipes import RECIPES, Form, Recipe, Rule, get_recipe

__all__ = ["RECIPES", "Form", "Recipe", "Rule", "get_recipe"]
