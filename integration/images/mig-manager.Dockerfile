# syntax=docker/dockerfile:1
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p mig-manager

FROM debian:bookworm-slim
COPY --from=build /src/target/release/mig-manager /usr/bin/mig-manager
ENTRYPOINT ["/usr/bin/mig-manager"]
