# syntax=docker/dockerfile:1
# ginlab for AWS instances with EFA.
#
# Not built yet: this file was written on a machine without a Docker daemon. Check the versions below first.
#
#   docker build --build-arg GINLAB_COMMIT="$(git rev-parse HEAD)" -t ginlab .
#   docker run --gpus all --device /dev/infiniband --ulimit memlock=-1 --shm-size 2g ginlab ginlab --version
#
# The kernel modules stay on the host: the NVIDIA driver (open modules, for GPU-direct), efa, and gdrdrv if wanted.

# Tags: https://hub.docker.com/r/nvidia/cuda/tags. 13.0 wants driver 580 or later.
ARG CUDA_VERSION=13.0.1
ARG UBUNTU_VERSION=24.04
# Versions and checksums: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-changelog.html
ARG EFA_INSTALLER_VERSION=1.50.0
# Releases: https://github.com/NVIDIA/gdrcopy/releases. Empty leaves GDRCopy out; ginlab then uses pinned memory.
ARG GDRCOPY_VERSION=2.5.1
# The compiler of the kernels, as kernels/rustc-version names it.
ARG RUST_VERSION=1.96.0

# --- the EFA installer, fetched once for both stages below ---------------------------------------------------------
FROM ubuntu:${UBUNTU_VERSION} AS efa-installer
ARG EFA_INSTALLER_VERSION
ADD https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz /efa.tar.gz
RUN tar -xzf /efa.tar.gz

# --- builder -------------------------------------------------------------------------------------------------------
FROM nvidia/cuda:${CUDA_VERSION}-devel-ubuntu${UBUNTU_VERSION} AS builder
ENV DEBIAN_FRONTEND=noninteractive
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# libclang: bindgen reads the headers of libfabric and MPI.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential ca-certificates curl git libclang-dev pciutils pkg-config \
    && rm -rf /var/lib/apt/lists/*

# libfabric, rdma-core and Open MPI as AWS builds them. No kernel module and no limits: those are the host's.
RUN --mount=type=bind,from=efa-installer,source=/aws-efa-installer,target=/mnt/efa \
    cp -r /mnt/efa /tmp/efa && cd /tmp/efa && apt-get update \
    && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
    && rm -rf /tmp/efa /var/lib/apt/lists/* && ldconfig

# The user-space library only; an empty directory when left out, so that the copy below always finds its source.
ARG GDRCOPY_VERSION
RUN mkdir -p /opt/gdrcopy \
    && if [[ -n "${GDRCOPY_VERSION}" ]]; then \
        git clone --depth 1 --branch "v${GDRCOPY_VERSION}" https://github.com/NVIDIA/gdrcopy.git /tmp/gdrcopy \
        && make -C /tmp/gdrcopy prefix=/opt/gdrcopy CUDA=/usr/local/cuda lib lib_install \
        && rm -rf /tmp/gdrcopy; \
    fi

# rust-src: the kernels' toolchain compiles `core` for the GPU.
ARG RUST_VERSION
ENV CARGO_HOME=/opt/cargo RUSTUP_HOME=/opt/rustup PATH=/opt/cargo/bin:/opt/amazon/openmpi/bin:/opt/amazon/efa/bin:$PATH
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs \
        | sh -s -- -y --no-modify-path --profile minimal --default-toolchain "${RUST_VERSION}" --component rust-src

ENV PKG_CONFIG_PATH=/opt/amazon/efa/lib/pkgconfig:/opt/amazon/openmpi/lib/pkgconfig
WORKDIR /src
COPY . .
# .git does not travel into the image, so the commit is handed in.
ARG GINLAB_COMMIT=
ENV GINLAB_COMMIT=${GINLAB_COMMIT}
RUN --mount=type=cache,target=/opt/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --features mpi && install -D target/release/ginlab /out/ginlab

# --- runtime -------------------------------------------------------------------------------------------------------
# The base image: ginlab loads libcuda, which the container toolkit brings, and needs nothing else of CUDA.
FROM nvidia/cuda:${CUDA_VERSION}-base-ubuntu${UBUNTU_VERSION} AS runtime
ENV DEBIAN_FRONTEND=noninteractive
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# sshd: how mpirun reaches the workers of a Kubernetes MPIJob, whose host keys are new with every pod.
RUN --mount=type=bind,from=efa-installer,source=/aws-efa-installer,target=/mnt/efa \
    apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl iproute2 openssh-client openssh-server pciutils \
    && cp -r /mnt/efa /tmp/efa && cd /tmp/efa \
    && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
    && rm -rf /tmp/efa /var/lib/apt/lists/* \
    && printf 'Host *\n    StrictHostKeyChecking no\n' >/etc/ssh/ssh_config.d/workers.conf \
    && mkdir -p /run/sshd && ldconfig

COPY --from=builder /opt/gdrcopy /opt/gdrcopy
COPY --from=builder /out/ginlab /usr/local/bin/ginlab
RUN printf '/opt/gdrcopy/lib\n/opt/amazon/openmpi/lib\n/opt/amazon/efa/lib\n' >/etc/ld.so.conf.d/ginlab.conf && ldconfig
ENV PATH=/opt/amazon/openmpi/bin:/opt/amazon/efa/bin:$PATH
CMD ["ginlab", "--help"]
