/// What Core ML may use; the names are those of its own MLComputeUnits.
public enum ComputeUnits: String, CaseIterable, Sendable {
    case all, cpuAndNeuralEngine, cpuAndGPU, cpuOnly
}
