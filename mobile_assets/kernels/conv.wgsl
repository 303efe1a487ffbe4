{#- A convolution of `size` x `size` as sums over its taps; nothing is unfolded in memory.

stride, up   from pixel to pixel; every pixel read `up` times along both sides (nearest upsampling)
subgroup     eight neighbours read the pixels that all of them want together (see gemm)
tm, tn       pixels of one row, and vec4 output channels, per invocation
-#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override H: u32; override W: u32; override C4: u32; // of the input
override OH: u32; override OW: u32; override N4: u32; // of the output
override TOP: u32; override LEFT: u32; // padding
{%- set types = ["a:write:" ~ p.vector(), "w:read:" ~ ("u32" if form == "int8" else p.vector()), "y:write:V"] -%}
{%- if form == "int8" %}{% set types = types + ["scale:read:V"] %}{% endif -%}
{%- set types = types + ["bias:read:V"] -%}
{%- if vector %}{% set types = types + ["vector:write:V"] %}{% endif -%}
{%- if residual %}{% set types = types + ["residual:write:V"] %}{% endif %}
{{ p.bindings(types) }}
{%- set span = (tm - 1) * stride + size %}

{{ p.main(wx, wy) }}
  let column = group.x * {{ wx * tn }}u + local.x;
  let n0 = min(column, N4 - 1u);
  let strip = group.y * {{ wy }}u + local.y;
  let strips = (OW + {{ tm - 1 }}u) / {{ tm }}u; // in a row of the output
  let oy = strip / strips;
  let ox = strip % strips * {{ tm }}u;
{%- if not subgroup %}
  if (column >= N4 || oy >= OH) { return; }
{%- endif %}
{%- for j in range(1, tn) %}
  let n{{ j }} = min(column + {{ j * wx }}u, N4 - 1u);
{%- endfor %}
{%- for i in range(tm) %}{% for j in range(tn) %}
  var c{{ i }}_{{ j }} = F();
{%- endfor %}{% endfor %}
{%- if subgroup %}{# pixel 8 t + lane of the span, for me to read #}
{%- for t in range((span + 7) // 8) %}
  let x{{ t }} = i32(ox * {{ stride }}u + min({{ 8 * t }}u + lane % 8u, {{ span - 1 }}u)) - i32(LEFT);
{%- endfor %}
{%- else %}
{%- for s in range(span) %}
  let x{{ s }} = i32(ox * {{ stride }}u + {{ s }}u) - i32(LEFT);
{%- endfor %}
{%- endif %}
{%- set mine = (span + 7) // 8 if subgroup else span %}
{%- for s in range(mine) %}
  let in{{ s }} = x{{ s }} >= 0 && x{{ s }} < i32(W * {{ up }}u);
  let p{{ s }} = u32(clamp(x{{ s }}{% if up > 1 %} / {{ up }}{% endif %}, 0, i32(W) - 1)) * C4;
{%- endfor %}
  for (var ky = 0u; ky < {{ size }}u; ky++) {
    let iy = i32(oy * {{ stride }}u + ky) - i32(TOP);
{%- if subgroup %}
    let above = iy >= 0 && iy < i32(H * {{ up }}u);
    let line = (group.z * H + u32(clamp(iy{% if up > 1 %} / {{ up }}{% endif %}, 0, i32(H) - 1))) * W * C4;
{%- else %}
    if (iy < 0 || iy >= i32(H * {{ up }}u)) { continue; }
    let line = (group.z * H + u32(iy{% if up > 1 %} / {{ up }}{% endif %})) * W * C4;
{%- endif %}
    for (var k = 0u; k < C4; k++) {
{%- for s in range(mine) %}
      let {{ "m" if subgroup else "a" }}{{ s }} = select(F(), {{ p.loaded("a[line + p%d + k]" % s) }}, in{{ s }}{{ " && above" if subgroup }});
{%- endfor %}
{%- if subgroup %}{% for s in range(span) %}
      let a{{ s }} = subgroupShuffle(m{{ s // 8 }}, eight + {{ s % 8 }}u);
{%- endfor %}{% endif %}
{%- for kx in range(size) %}
{%- for j in range(tn) %}{% for q in range(4) %}
      let b{{ kx }}_{{ j }}_{{ q }} = {{ p.weights(form, "(((ky * %du + %du) * C4 + k) * 4u + %du) * N4 + n%d" % (size, kx, q, j), "w") }};
{%- endfor %}{% endfor %}
{%- for i in range(tm) %}{% for j in range(tn) %}{% for q in range(4) %}
      c{{ i }}_{{ j }} = fma(F(a{{ i * stride + kx }}[{{ q }}]), b{{ kx }}_{{ j }}_{{ q }}, c{{ i }}_{{ j }});
{%- endfor %}{% endfor %}{% endfor %}
{%- endfor %}
    }
  }
{%- for j in range(tn) %}
  let offset{{ j }} = F(bias[n{{ j }}]){% if vector %} + F(vector[group.z * N4 + n{{ j }}]){% endif %};
{%- if form == "int8" %}
  let scale{{ j }} = F(scale[n{{ j }}]);
{%- endif %}
{%- endfor %}
{%- for i in range(tm) %}
  if (ox + {{ i }}u < OW{{ " && column < N4 && oy < OH" if subgroup }}) {
    let to{{ i }} = ((group.z * OH + oy) * OW + ox + {{ i }}u) * N4;
{%- for j in range(tn) %}
    let y{{ j }} = c{{ i }}_{{ j }}{% if form == "int8" %} * scale{{ j }}{% endif %} + offset{{ j }}{% if residual %} + F(residual[to{{ i }} + n{{ j }}]){% endif %};
    {% if j %}if (column + {{ j * wx }}u < N4) { {% endif %}y[to{{ i }} + n{{ j }}] = {{ p.stored("y%d" % j) }};{% if j %} }{% endif %}
{%- endfor %}
  }
{%- endfor %}
}
