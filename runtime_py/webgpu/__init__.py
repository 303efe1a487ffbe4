"""The mobile GPU runtime on this host: plans of WGSL kernels, run through wgpu."""
