//! Links the view at the place of the driver's `libnvidia-ml.so.1`.

fn main() -> std::io::Result<()> {
    gputenancy_interpose::link::in_front_of(gputenancy_interpose::NVML)
}
