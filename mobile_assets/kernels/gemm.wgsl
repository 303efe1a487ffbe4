{#- Rows of `a` times a matrix: every linear layer, 1x1 convolution and product of an attention.

form     f16, f32: weights [K][N]; int8: the same with a scale per column;
         rows: the other factor is an activation too, [N][K] (keys); columns: it is [K][N] (values)
softmax  `a` holds scores; exp(a - max) / sum is applied as they are read
planes   many products of one size side by side: Winograd's
subgroup eight invocations side by side want the same rows of `a`: each reads one of every eight,
         and they pass them around; wants wx = 8, tm in eights and eight neighbours in a subgroup
tm, tn   rows and vec4 columns per invocation
-#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override M: u32; override N4: u32; override K4: u32; // rows; vec4 columns and inner size
override LDA: u32; override LDB: u32; override LDC: u32; // from row to row, in vec4
{%- if heads %}
override HEADS: u32; override Z0: u32; // of the whole tensor, and the first one of this dispatch
override A_HEAD: u32; override B_BATCH: u32; override B_HEAD: u32; override C_HEAD: u32;
override {{ "A_BATCH" if form == "rows" else "C_BATCH" }}: u32; // scores have heads, no batches
{%- endif %}
{%- if form == "rows" %}
override N: u32; override SCALE: f32;
{%- endif %}
{%- if form == "columns" %}
override K: u32;
{%- endif %}
{%- if vector %}
override ROWS: u32; // that share a vector
{%- endif %}
{%- set types = ["a:write:" ~ p.vector(), "w:" ~ ("write:" ~ p.vector() if form in ("rows", "columns") else "read:u32" if form == "int8" else "read:" ~ p.vector()), "y:write:V"] -%}
{%- if form == "int8" %}{% set types = types + ["scale:read:V"] %}{% endif -%}
{%- if bias %}{% set types = types + ["bias:read:V"] %}{% endif -%}
{%- if vector %}{% set types = types + ["vector:write:V"] %}{% endif -%}
{%- if residual %}{% set types = types + ["residual:write:V"] %}{% endif -%}
{%- if softmax %}{% set types = types + ["summary:write:vec2<f32>"] %}{% endif -%}
{{ p.bindings(types) }}
{{ p.activation(activation) }}
{%- macro read(i) -%}
{% if softmax -%}
select(F(), exp({{ p.loaded("a[a_%s + k]" % i) }} - s{{ i }}.x) * s{{ i }}.y, k * 4u + vec4u(0u, 1u, 2u, 3u) < vec4u(K{% if causal %} - M + r{{ i }} + 1u{% endif %}))
{%- else -%}
{{ p.loaded("a[a_%s + k]" % i) }}
{%- endif %}
{%- endmacro -%}
{%- set columns = 2 if activation == "geglu" else tn %}
{%- set step = "N4" if activation == "geglu" else wx ~ "u" %}

{{ p.main(wx, wy) }}
  let column = group.x * {{ wx * (1 if activation == "geglu" else tn) }}u + local.x;
  let row = (group.y * {{ wy }}u + local.y) * {{ tm }}u;
{%- if not subgroup %}
  if (row >= M || column >= N4) { return; }
{%- endif %}
{%- if heads %}
  let batch = (group.z + Z0) / HEADS;
  let head = (group.z + Z0) % HEADS;
  let a0 = {{ "group.z * A_HEAD" if form == "columns" else "batch * A_BATCH + head * A_HEAD" }};
  let b0 = batch * B_BATCH + head * B_HEAD;
  let c0 = {{ "group.z * C_HEAD" if form == "rows" else "batch * C_BATCH + head * C_HEAD" }};
{%- elif planes %}
  let a0 = group.z * M * LDA; let b0 = group.z * K4 * 4u * LDB; let c0 = group.z * M * LDC;
{%- else %}
  let a0 = 0u; let b0 = 0u; let c0 = 0u;
{%- endif %}
{%- for i in range(tm) %}
  let r{{ i }} = min(row + {{ i }}u, M - 1u);
{%- if not subgroup %}
  let a_{{ i }} = a0 + r{{ i }} * LDA;
{%- if softmax %}
  let s{{ i }} = summary[group.z * M + r{{ i }}];
{%- endif %}
{%- endif %}
{%- endfor %}
{%- if subgroup %}{% for t in range(tm // 8) %}
  let rm{{ t }} = min(row + {{ t * 8 }}u + lane % 8u, M - 1u);
  let a_m{{ t }} = a0 + rm{{ t }} * LDA;
{%- if softmax %}
  let sm{{ t }} = summary[group.z * M + rm{{ t }}];
{%- endif %}
{%- endfor %}{% endif %}
{%- for j in range(columns) %}
  let n{{ j }} = {{ "min(column, N4 - 1u)" if j == 0 else "min(column, N4 - 1u) + N4" if activation == "geglu" else "min(column + %du, N4 - 1u)" % (j * wx) }};
{%- for i in range(tm) %}
  var c{{ i }}_{{ j }} = F();
{%- endfor %}
{%- endfor %}
{%- if form == "rows" %}
{%- for j in range(columns) %}{% for q in range(4) %}
  let k{{ j }}_{{ q }} = b0 + min(n{{ j }} * 4u + {{ q }}u, N - 1u) * LDB;
{%- endfor %}{% endfor %}
{%- endif %}
  for (var k = 0u; k < K4; k++) {
{%- for j in range(columns) %}{% for q in range(4) %}
{%- if form == "rows" %}
    let b{{ j }}_{{ q }} = {{ p.loaded("w[k%d_%d + k]" % (j, q)) }};
{%- elif form == "columns" %}
    let b{{ j }}_{{ q }} = {{ p.loaded("w[b0 + min(k * 4u + %du, K - 1u) * LDB + n%d]" % (q, j)) }};
{%- else %}
    let b{{ j }}_{{ q }} = {{ p.weights(form, "b0 + (k * 4u + %du) * LDB + n%d" % (q, j), "w") }};
{%- endif %}
{%- endfor %}{% endfor %}
{%- if subgroup %}{% for t in range(tm // 8) %}
    let m{{ t }} = {{ read("m%d" % t) }};
{%- endfor %}{% endif %}
{%- for i in range(tm) %}
    let x{{ i }} = {% if subgroup %}subgroupShuffle(m{{ i // 8 }}, eight + {{ i % 8 }}u){% else %}{{ read(i) }}{% endif %};
{%- for j in range(columns) %}
{%- if form == "rows" %}
    c{{ i }}_{{ j }} += F(dot(x{{ i }}, b{{ j }}_0), dot(x{{ i }}, b{{ j }}_1), dot(x{{ i }}, b{{ j }}_2), dot(x{{ i }}, b{{ j }}_3));
{%- else %}
{%- for q in range(4) %}
    c{{ i }}_{{ j }} = fma(F(x{{ i }}[{{ q }}]), b{{ j }}_{{ q }}, c{{ i }}_{{ j }});
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- endfor %}
  }
{%- for j in range(columns) %}
{%- if form == "int8" %}
  let scale{{ j }} = F(scale[n{{ j }}]);
{%- endif %}
{%- if bias %}
  let bias{{ j }} = F(bias[n{{ j }}]);
{%- endif %}
{%- endfor %}
{%- for i in range(tm) %}
  if (row + {{ i }}u < M{{ " && column < N4" if subgroup }}) {
{%- for j in range(columns) %}
    var y{{ j }} = c{{ i }}_{{ j }}{% if form == "int8" %} * scale{{ j }}{% endif %}{% if bias %} + bias{{ j }}{% endif %}{% if form == "rows" %} * SCALE{% endif %};
{%- if vector %}
    y{{ j }} += F(vector[r{{ i }} / ROWS * N4 + n{{ j }}]);
{%- endif %}
{%- endfor %}
{%- if activation == "geglu" %}
    y0 *= activate(y1);
    y[c0 + r{{ i }} * LDC + n0] = {{ p.stored("y0") }};
{%- else %}
{%- for j in range(columns) %}
{%- if activation %}
    y{{ j }} = activate(y{{ j }});
{%- endif %}
{%- if residual %}
    y{{ j }} += F(residual[r{{ i }} * LDC + n{{ j }}]);
{%- endif %}
    {% if j %}if (column + {{ j * wx }}u < N4) { {% endif %}y[c0 + r{{ i }} * LDC + n{{ j }}] = {{ p.stored("y%d" % j) }};{% if j %} }{% endif %}
{%- endfor %}
{%- endif %}
  }
{%- endfor %}
}
