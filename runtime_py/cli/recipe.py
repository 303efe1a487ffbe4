"""pocketsd recipe"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from runtime_py.cli.options import overwrite_option

EPILOG = """\b
Examples:
  pocketsd record tiny-sd.torch --exam 8 -o tiny-sd.npz
  pocketsd recipe mobile_assets/tiny-sd --calibration tiny-sd.npz --bits 4 -o tiny-sd.json
  pocketsd recipe ./sd15 --calibration sd15.npz --bits 4.5 --quick --samples 1
  pocketsd recipe ./sd15 --calibration sd15.npz --component text_encoder --bits 6
      --form palette8 --form palette6 --form palette4-g16
"""
COMPONENTS = ("text_encoder", "unet", "vae_decoder", "vae_encoder")
#: The widths of table that Core ML has had from the start.
FORMS = ("palette8", "palette6", "palette4", "palette2")


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--calibration",
    required=True,
    type=click.Path(path_type=Path),
    help="A recording of the model (`pocketsd record`) to measure on.",
)
@click.option(
    "--component",
    "components",
    multiple=True,
    type=click.Choice(COMPONENTS),
    default=["unet"],
    show_default=True,
    help="Repeatable; the others stay in fp16.",
)
@click.option(
    "--bits",
    type=click.FloatRange(1, 16),
    required=True,
    help="Mean bits of a weight, tables and scales included.",
)
@click.option(
    "--form",
    "forms",
    multiple=True,
    default=FORMS,
    show_default=True,
    help="A form to choose from, beside fp16; repeatable.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Samples of each component to measure on, spread over the recording.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Measure each layer in its coarsest form only, and reckon the others from that.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("recipe.json"),
    show_default=True,
)
@overwrite_option
def command(
    model: Path,
    calibration: Path,
    components: tuple[str, ...],
    bits: float,
    forms: tuple[str, ...],
    samples: int,
    quick: bool,
    output: Path,
    overwrite: bool,
) -> None:
    """Choose the form in which each layer's weights are stored.

    Compresses one layer of MODEL at a time, in every form, and measures what that does to the
    component's results; then chooses the forms that cost least at the mean number of bits asked
    for, and measures the choice as a whole. A run of the component is needed for every layer and
    form: with a full-size UNet think of --quick and of few --samples.
    """
    from runtime_py.cli.heavy import converter_module
    from runtime_py.cli.progress import bar, stages
    from runtime_py.files import require_free
    from runtime_py.recording import read

    require_free(output, overwrite=overwrite)
    parse = converter_module("quantize.forms").parse_form
    candidates = [parse(name) for name in forms]
    recording = read(calibration)
    components = tuple(dict.fromkeys(components))
    for name in components:
        recording.of(name)
    with stages("Reading", 4) as announce:
        checkpoint = converter_module("checkpoints").open_checkpoint(model, progress=announce)
    specs = [converter_module("components").get_component(name) for name in components]
    sensitivity = converter_module("quantize.sensitivity")
    drafting = converter_module("quantize.draft")
    shapes_in = converter_module("quantize.layers").shapes_in
    layers = sum(len(shapes_in(checkpoint, spec)) for spec in specs)
    drafts: dict[str, Any] = {}
    with bar("Measuring", layers) as advance:
        for spec in specs:
            subject = sensitivity.subject(spec, checkpoint, recording, samples)
            drafts[spec.name] = drafting.draft(
                subject,
                candidates,
                bits,
                quick=quick,
                advance=lambda layer, name=spec.name: advance(1, name),
            )
    file = converter_module("quantize.recipe_file")
    recipe = file.WeightRecipe(
        {name: draft.recipe for name, draft in drafts.items()},
        {name: draft.figures() for name, draft in drafts.items()},
    )
    file.write(recipe, output)
    for name, draft in drafts.items():
        click.echo("\n".join(_table(name, draft)))
    click.echo(f"{output}: {', '.join(drafts)}")


def _table(name: str, draft: Any) -> list[str]:
    counts = Counter(str(form) for form in draft.forms.values()).most_common()
    width = max(len(layer) for layer, _ in draft.most_sensitive(10))
    return [
        f"{name}: {draft.mean_bits:.2f} bits a weight; PSNR predicted {draft.predicted:.1f} dB,"
        f" measured {draft.measured:.1f} dB on {draft.samples} sample(s), at the worst"
        f" {draft.worst:.1f} dB",
        "layers: " + ", ".join(f"{count} in {form}" for form, count in counts),
        f"{'most sensitive':<{width}}  alone in {draft.coarsest}  chosen",
        *(
            f"{layer:<{width}}  {alone:>{len(f'alone in {draft.coarsest}') - 3}.1f} dB"
            f"  {draft.forms[layer]}"
            for layer, alone in draft.most_sensitive(10)
        ),
    ]
