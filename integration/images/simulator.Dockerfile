# syntax=docker/dockerfile:1
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p silicon -p nvml-sim -p cuda-sim

FROM debian:bookworm-slim
COPY --from=build /src/target/release/nvsim /usr/bin/nvsim
COPY --from=build /src/target/release/libnvml_sim.so /usr/lib/nvsim/libnvidia-ml.so.1
COPY --from=build /src/target/release/libcuda_sim.so /usr/lib/nvsim/libcuda.so.1
ENTRYPOINT ["/usr/bin/nvsim"]
