# syntax=docker/dockerfile:1
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p silicon -p cuda-sim

FROM debian:bookworm-slim
COPY --from=build /src/target/release/gpu-work /usr/bin/gpu-work
COPY --from=build /src/target/release/cuda-work /usr/bin/cuda-work
ENTRYPOINT ["/usr/bin/gpu-work"]
