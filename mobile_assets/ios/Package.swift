// swift-tools-version: 5.10
import PackageDescription

let package = Package(
    name: "PocketSD",
    platforms: [.iOS(.v16), .macOS(.v13)],
    products: [
        .library(name: "PocketSDCore", targets: ["PocketSDCore"]),
        .library(name: "PocketSDCoreML", targets: ["PocketSDCoreML"]),
        .executable(name: "pocketsd-bench", targets: ["pocketsd-bench"]),
    ],
    targets: [
        .target(name: "PocketSDCore"),
        .target(name: "PocketSDCoreML", dependencies: ["PocketSDCore"]),
        .executableTarget(
            name: "pocketsd-bench", dependencies: ["PocketSDCore", "PocketSDCoreML"]),
        .testTarget(name: "PocketSDCoreTests", dependencies: ["PocketSDCore", "pocketsd-bench"]),
    ]
)

// Where there is no Core ML, the engine's own logic is tested on a stand-in of that name.
if Context.environment["POCKETSD_STAND_IN"] != nil {
    package.products = []
    package.targets = [
        .target(name: "CoreML", path: "Tests/StandIn"),
        .target(name: "PocketSDCore"),
        .target(name: "PocketSDCoreML", dependencies: ["PocketSDCore", "CoreML"]),
        .testTarget(
            name: "PocketSDCoreMLTests",
            dependencies: ["PocketSDCore", "PocketSDCoreML", "CoreML"]),
    ]
}
