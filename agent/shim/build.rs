//! Links the shim at the place of the driver's `libcuda.so.1`.

fn main() -> std::io::Result<()> {
    gputenancy_interpose::link::in_front_of(gputenancy_interpose::CUDA)
}
