{#- Tiles of a picture into Winograd's domain: [m + 2, m + 2][tile][channels]. An invocation
transforms one tile of four channels. `b` is the matrix, row by row. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override H: u32; override W: u32; override C4: u32; // of the input
override ACROSS: u32; override FIRST: u32; override COUNT: u32; // tiles in a row; of this dispatch
override TOP: u32; override LEFT: u32;
{{ p.bindings(["a:write:V", "y:write:V"]) }}
{%- set n = b | length %}

fn load(image: u32, y: i32, x: i32, c: u32) -> F {
  let inside = y >= 0 && x >= 0 && y < i32(H{{ " * 2u" if up > 1 }}) && x < i32(W{{ " * 2u" if up > 1 }});
  let at = (image * H + u32(clamp(y{{ " / 2" if up > 1 }}, 0, i32(H) - 1))) * W + u32(clamp(x{{ " / 2" if up > 1 }}, 0, i32(W) - 1));
  return select(F(), F(a[at * C4 + c]), inside);
}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let at = id.y * groups.x * 32u + id.x;
  if (at >= COUNT * C4) { return; }
{%- for i in range(n) %}{% for j in range(n) %}
  var t{{ i }}_{{ j }}: F;
{%- endfor %}{% endfor %}
  let tile = FIRST + at / C4;
  let c = at % C4;
  let down = {{ "(H%s + %du) / %du" % (" * 2u" if up > 1 else "", m - 1, m) }};
  let image = tile / (ACROSS * down);
  let y0 = i32(tile / ACROSS % down * {{ m }}u) - i32(TOP);
  let x0 = i32(tile % ACROSS * {{ m }}u) - i32(LEFT);
{%- for j in range(n) %}
  { // column {{ j }}
{%- for i in range(n) %}
    let d{{ i }} = load(image, y0 + {{ i }}, x0 + {{ j }}, c);
{%- endfor %}
{%- for i in range(n) %}
    t{{ i }}_{{ j }} = {{ sum(b[i], "d") }};
{%- endfor %}
  }
{%- endfor %}
{%- for i in range(n) %}
{%- for j in range(n) %}
  { let v = {{ sum(b[j], "t%d_" % i) }}; y[{{ i * n + j }}u * COUNT * C4 + at] = {{ p.stored("v") }}; }
{%- endfor %}
{%- endfor %}
}
