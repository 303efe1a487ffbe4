/// What to draw. An `image` makes it img2img.
public struct Request: Sendable {
    public var prompt: String
    public var negativePrompt = ""
    public var seeds: [UInt64] = [0]
    public var guidanceScale = 7.5
    public var height: Int?
    public var width: Int?
    public var image: Picture?  // of the size to draw
    public var strength = 0.75
    public var lowMemory = false  // hold one component at a time

    public init(prompt: String) {
        self.prompt = prompt
    }

    /// The picture's size, checked against what the package can draw.
    public func size(for package: Package) throws -> (height: Int, width: Int) {
        let picture = package.manifest.picture
        let (height, width) = (self.height ?? picture.height, self.width ?? picture.width)
        let sizes = try package.sizes()
        guard sizes.isEmpty || sizes.contains("\(width)x\(height)") else {
            throw PocketSDError(
                "this package draws \(sizes.joined(separator: " and ")) pictures only",
                at: package.path, mend: "convert it again with --height and --width")
        }
        for (name, size) in [("height", height), ("width", width)] {
            guard (1...4096).contains(size), size % picture.unit == 0 else {
                throw PocketSDError(
                    "\(name) \(size) is not a multiple of \(picture.unit) up to 4096")
            }
        }
        guard (1...64).contains(seeds.count) else {
            throw PocketSDError("\(seeds.count) seeds given, 1 to 64 are possible")
        }
        guard guidanceScale.isFinite else { throw PocketSDError("the guidance scale is no number") }
        if let image, (image.height, image.width) != (height, width) {
            throw PocketSDError(
                "the image has \(image.width)x\(image.height) pixels, not \(width)x\(height)")
        }
        return (height, width)
    }

    /// At scale 1 guidance returns the conditional answer, so the other one need not be asked.
    var prompts: [String] { guidanceScale == 1 ? [prompt] : [negativePrompt, prompt] }
}

/// What happens while a picture is drawn.
public enum Event: Sendable {
    case loaded(component: String, seconds: Double)
    case ran(component: String, seconds: Double)  // the denoiser says `step` instead
    case step(Step)
}

/// One row of the sampler table has been played.
public struct Step: Sendable {
    public let index: Int
    public let total: Int
    public let timestep: Double
    public let latents: [Float]  // [seeds, channels, h, w]
    public let seconds: Double
}

/// The pictures, one per seed.
public struct Drawn: Sendable {
    public let pictures: [Picture]
    public let latents: [Float]  // [seeds, channels, h, w]
    public let cut: String  // the end of the prompt, if it was too long for the text encoder
}
