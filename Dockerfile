# syntax=docker/dockerfile:1
# Images of ginlab, one per stage: laptop (Debian, small, emulated device), cuda (GPUs), efa (GPUs and EFA).
#
#   docker build --target laptop --build-arg GINLAB_COMMIT="$(git rev-parse HEAD)" -t ginlab:laptop .
#   docker build --target efa    --build-arg GINLAB_COMMIT="$(git rev-parse HEAD)" -t ginlab .
#   docker run --rm ginlab:laptop
#   docker run --rm --gpus all $(printf -- '--device %s ' /dev/infiniband/uverbs* /dev/gdrdrv) --ulimit memlock=-1 --shm-size 8g ginlab ginlab doctor --require-efa
#
# Build arguments: GINLAB_COMMIT, DEBIAN, CUDA_VERSION, UBUNTU_VERSION, EFA_INSTALLER_VERSION and _SHA256,
# GDRCOPY_COMMIT, RUST_VERSION. Built by scripts/image-lab.sh (buildah, a base of Debian packages): builder and laptop.
# Not built yet: cuda and efa. The program is built once, on Debian 12. It needs glibc 2.34 and Open MPI 4
# (libmpi.so.40), which all images have. The host provides the kernel modules: NVIDIA driver (open modules, for
# GPU-direct), efa, optionally gdrdrv.

# For a reproducible base, use a digest: --build-arg DEBIAN=debian@sha256:...
ARG DEBIAN=debian:12-slim
# Tags: https://hub.docker.com/r/nvidia/cuda/tags. 13.0 requires driver 580 or later.
ARG CUDA_VERSION=13.0.1
ARG UBUNTU_VERSION=24.04
# Newest stable version in the EC2 User Guide ("Get started with EFA"), read 2026-11-25. The checksum is the one in
# seven public files of different owners. For the checksum of a newer version see AWS ParallelCluster's cookbook
# (cookbooks/aws-parallelcluster-environment/attributes/environment.rb) or the User Guide's "Verify the EFA installer
# using a checksum". Nothing here needs a version above 1.50.
ARG EFA_INSTALLER_VERSION=1.50.0
ARG EFA_INSTALLER_SHA256=fa6dff8593d866866c13cb4640d9059835cd4efa427971f100ab40c97bef2841
# The commit of release 2.5.2; the hash also authenticates it.
ARG GDRCOPY_COMMIT=c91ad9f178e5fb729fc5b6dc62a77c3bb364d6c9
# Compiler of the kernels, as in kernels/rustc-version; scripts/setup.sh installs Debian's package.
ARG RUST_VERSION=1.96.0

# --- builder: only Debian packages, whose signatures apt checks ---
FROM ${DEBIAN} AS builder
ENV DEBIAN_FRONTEND=noninteractive
WORKDIR /src
COPY . .
# .git is not in the build context, so the commit is an argument.
ARG GINLAB_COMMIT=
ARG RUST_VERSION
ENV GINLAB_COMMIT=${GINLAB_COMMIT}
RUN test "$(cat kernels/rustc-version)" = "${RUST_VERSION}" \
    && apt-get update && apt-get install -y --no-install-recommends make ca-certificates \
    && scripts/setup.sh mpi && scripts/build.sh --features mpi \
    && install -D target/release/ginlab /out/ginlab && install -m 644 target/release/libsoft_efa.so /out/ && install deploy/ranks.sh /out/ginlab-ranks

# --- laptop ---
FROM ${DEBIAN} AS laptop
ENV DEBIAN_FRONTEND=noninteractive
# sshd, through which mpirun reaches the workers of a Kubernetes MPIJob. Each pod creates its own host keys.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        libfabric1 openmpi-bin openssh-client openssh-server iproute2 pciutils \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* && mkdir -p /run/sshd
COPY --from=builder /out/ /usr/local/bin/
CMD ["ginlab", "proxy", "--np", "2", "--rails", "1,4", "-b", "4K", "-e", "4M", "-f", "32", "--mode", "quiet,nbi", "--check"]

# --- cuda ---
# User-space library of GDRCopy.
FROM nvidia/cuda:${CUDA_VERSION}-devel-ubuntu${UBUNTU_VERSION} AS gdrcopy
ARG GDRCOPY_COMMIT
RUN apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates git \
    && git init -q /tmp/gdrcopy && cd /tmp/gdrcopy \
    && git fetch -q --depth 1 https://github.com/NVIDIA/gdrcopy.git "${GDRCOPY_COMMIT}" && git checkout -q FETCH_HEAD \
    && make prefix=/opt/gdrcopy CUDA=/usr/local/cuda lib lib_install

# Base of the GPU images. ginlab loads libcuda, which the container toolkit provides, and needs nothing else of CUDA.
# No MPI: the images derived from it add one.
FROM nvidia/cuda:${CUDA_VERSION}-base-ubuntu${UBUNTU_VERSION} AS gpu
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl openssh-client openssh-server iproute2 pciutils \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* && mkdir -p /run/sshd
COPY --from=gdrcopy /opt/gdrcopy /opt/gdrcopy
COPY --from=builder /out/ /usr/local/bin/
RUN echo /opt/gdrcopy/lib >/etc/ld.so.conf.d/gdrcopy.conf && ldconfig
# Makes the container toolkit pass in the host's /dev/gdrdrv, and nvidia-cuda-mps-control (`utility`) for MPS.
ENV NVIDIA_GDRCOPY=enabled NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM gpu AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends libfabric1 openmpi-bin && rm -rf /var/lib/apt/lists/*
CMD ["ginlab", "doctor"]

# --- efa ---
FROM ubuntu:${UBUNTU_VERSION} AS efa-installer
ARG EFA_INSTALLER_VERSION
ARG EFA_INSTALLER_SHA256
ADD --checksum=sha256:${EFA_INSTALLER_SHA256} \
    https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz /efa.tar.gz
RUN tar -xzf /efa.tar.gz

# libfabric, rdma-core and Open MPI as built by AWS, without kernel module and limits, which belong to the host.
# Installers above 1.47 treat an image with CUDA as one of NVIDIA's builds and omit rdma-core, unless
# --disable-build-ngc is given.
FROM gpu AS efa
RUN --mount=type=bind,from=efa-installer,source=/aws-efa-installer,target=/mnt/efa \
    cp -r /mnt/efa /tmp/efa && cd /tmp/efa && apt-get update \
    && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify --disable-build-ngc \
    && rm -rf /tmp/efa /var/lib/apt/lists/* \
    && printf '/opt/amazon/openmpi/lib\n/opt/amazon/efa/lib\n' >/etc/ld.so.conf.d/000-efa.conf && ldconfig
ENV PATH=/opt/amazon/openmpi/bin:/opt/amazon/efa/bin:$PATH
CMD ["ginlab", "doctor", "--require-efa"]
