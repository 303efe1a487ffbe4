"""Which layers are stored, and computed, in which form.

`recipes` are the fixed ones of LiteRT's quantiser, exported here. All other modules compress
weights themselves: `forms` names the ways, `compress` carries one out, `sensitivity` measures what
it costs, `choose` and `draft` make a recipe of that, `recipe_file` keeps it.
"""

from converter.quantize.recipes import RECIPES, Form, Recipe, Rule, get_recipe

__all__ = ["RECIPES", "Form", "Recipe", "Rule", "get_recipe"]
