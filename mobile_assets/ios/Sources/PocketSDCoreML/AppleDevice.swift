#if canImport(Darwin)
import Darwin
import Foundation
import PocketSDCore

extension Device {
    /// The phone, tablet, simulator or Mac that this runs on.
    public static var current: Device {
        Device(
            kind: kind, model: model, system: system,
            systemVersion: ProcessInfo.processInfo.operatingSystemVersionString,
            thermalState: { thermalName(ProcessInfo.processInfo.thermalState) },
            peakMemoryBytes: peakFootprint)
    }

    private static var kind: Kind {
        #if targetEnvironment(simulator)
        return .simulator
        #elseif os(macOS)
        return .desktop
        #else
        if ProcessInfo.processInfo.isiOSAppOnMac { return .desktop }
        return model.hasPrefix("iPad") ? .tablet : .phone
        #endif
    }

    /// "iPhone16,1" or "Mac14,2"; of a simulator, what it simulates.
    private static var model: String {
        #if targetEnvironment(simulator)
        return ProcessInfo.processInfo.environment["SIMULATOR_MODEL_IDENTIFIER"]
            ?? "unknown"
        #elseif os(macOS)
        return systemValue("hw.model")
        #else
        return systemValue("hw.machine")
        #endif
    }

    private static var system: String {
        #if os(macOS)
        return "macOS"
        #else
        return "iOS"
        #endif
    }
}

private func systemValue(_ name: String) -> String {
    var size = 0
    guard sysctlbyname(name, nil, &size, nil, 0) == 0, size > 0 else { return "unknown" }
    var text = [UInt8](repeating: 0, count: size)
    guard sysctlbyname(name, &text, &size, nil, 0) == 0 else { return "unknown" }
    return String(decoding: text.prefix { $0 != 0 }, as: UTF8.self)
}

private func thermalName(_ state: ProcessInfo.ThermalState) -> String {
    switch state {
    case .nominal: return "nominal"
    case .fair: return "fair"
    case .serious: return "serious"
    case .critical: return "critical"
    @unknown default: return "unknown"
    }
}

/// The highest physical footprint so far: the number that iOS ends an app by.
@Sendable private func peakFootprint() -> UInt64? {
    var info = task_vm_info_data_t()
    let words = MemoryLayout<task_vm_info_data_t>.size / MemoryLayout<integer_t>.size
    var count = mach_msg_type_number_t(words)
    let status = withUnsafeMutablePointer(to: &info) { pointer in
        pointer.withMemoryRebound(to: integer_t.self, capacity: words) {
            task_info(mach_task_self_, task_flavor_t(TASK_VM_INFO), $0, &count)
        }
    }
    guard status == KERN_SUCCESS else { return nil }
    return max(info.phys_footprint, UInt64(max(info.ledger_phys_footprint_peak, 0)))
}
#endif
