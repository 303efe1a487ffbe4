{#- A convolution of `size` x `size` as sums over its taps; nothing is unfolded in memory.

stride, up   from pixel to pixel; every pixel read `up` times along both sides (nearest upsampling)
tm, tn       pixels of one row, and vec4 output channels, per invocation
-#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override H: u32; override W: u32; override C4: u32; // of the input
override OH: u32; override OW: u32; override N4: u32; // of the output
override TOP: u32; override LEFT: u32; // padding
{%- set types = ["a:write:V", "w:read:" ~ ("u32" if form == "int8" else "V"), "y:write:V"] -%}
{%- if form == "int8" %}{% set types = types + ["scale:read:V"] %}{% endif -%}
{%- set types = types + ["bias:read:V"] -%}
{%- if vector %}{% set types = types + ["vector:write:V"] %}{% endif -%}
{%- if residual %}{% set types = types + ["residual:write:V"] %}{% endif %}
{{ p.bindings(types) }}
{%- set span = (tm - 1) * stride + size %}

@compute @workgroup_size({{ wx }}, {{ wy }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
  let n0 = group.x * {{ wx * tn }}u + local.x;
  let strip = group.y * {{ wy }}u + local.y;
  let strips = (OW + {{ tm - 1 }}u) / {{ tm }}u; // in a row of the output
  let oy = strip / strips;
  let ox = strip % strips * {{ tm }}u;
  if (n0 >= N4 || oy >= OH) { return; }
{%- for j in range(1, tn) %}
  let n{{ j }} = min(n0 + {{ j * wx }}u, N4 - 1u);
{%- endfor %}
{%- for i in range(tm) %}{% for j in range(tn) %}
  var c{{ i }}_{{ j }} = F();
{%- endfor %}{% endfor %}
{%- for s in range(span) %}
  let x{{ s }} = i32(ox * {{ stride }}u + {{ s }}u) - i32(LEFT);
  let in{{ s }} = x{{ s }} >= 0 && x{{ s }} < i32(W * {{ up }}u);
  let p{{ s }} = u32(clamp(x{{ s }}{% if up > 1 %} / {{ up }}{% endif %}, 0, i32(W) - 1)) * C4;
{%- endfor %}
  for (var ky = 0u; ky < {{ size }}u; ky++) {
    let iy = i32(oy * {{ stride }}u + ky) - i32(TOP);
    if (iy < 0 || iy >= i32(H * {{ up }}u)) { continue; }
    let line = (group.z * H + u32(iy{% if up > 1 %} / {{ up }}{% endif %})) * W * C4;
    for (var k = 0u; k < C4; k++) {
{%- for s in range(span) %}
      let a{{ s }} = select(F(), F(a[line + p{{ s }} + k]), in{{ s }});
{%- endfor %}
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
  if (ox + {{ i }}u < OW) {
    let to{{ i }} = ((group.z * OH + oy) * OW + ox + {{ i }}u) * N4;
{%- for j in range(tn) %}
    let y{{ j }} = c{{ i }}_{{ j }}{% if form == "int8" %} * scale{{ j }}{% endif %} + offset{{ j }}{% if residual %} + F(residual[to{{ i }} + n{{ j }}]){% endif %};
    {% if j %}if (n0 + {{ j * wx }}u < N4) { {% endif %}y[to{{ i }} + n{{ j }}] = {{ p.stored("y%d" % j) }};{% if j %} }{% endif %}
{%- endfor %}
  }
{%- endfor %}
}
