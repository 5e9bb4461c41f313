//! The archive of `scripts/dist.sh` (`make dist`), packed from the tested programs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{JobOutput, clean, run};

/// Runs `scripts/dist.sh` on the programs in `from`. Accepts that they need the libraries `accepted`.
fn dist(from: &Path, out: &Path, accepted: &[&str]) -> JobOutput {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/dist.sh"));
    clean(&mut script);
    script.arg("--from").arg(from).arg("--out").arg(out);
    script.args(accepted.iter().flat_map(|library| ["--accept", library]));
    run(script)
}

/// Packs the tested programs into `out`. Returns the archive.
pub fn packed(out: &Path) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_ginlab"));
    let programs = out.join("programs");
    std::fs::create_dir(&programs).unwrap();
    for file in ["ginlab", "libnccl_ginlab.so", "libsoft_efa.so"] {
        // Cargo stores libraries of other packages in `deps`.
        let places = [built.with_file_name("deps").join(file), built.with_file_name(file)];
        let at = places.iter().find(|at| at.is_file()).unwrap_or_else(|| panic!("{places:?}"));
        std::os::unix::fs::symlink(at, programs.join(file)).unwrap();
    }
    // The tests' build may have MPI, whose library an archive may only need if it is asked for.
    let mpi = needed(built);
    let mpi: Vec<&str> = mpi.iter().map(String::as_str).filter(|library| library.starts_with("libmpi")).collect();
    assert_eq!(mpi.is_empty(), !cfg!(feature = "mpi"), "{mpi:?}");
    dist(&programs, out, &mpi).expect(0);
    out.join(format!("ginlab-{}-{}-linux.tar.gz", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH))
}

/// Unpacks the archive in `folder`, which is created. Returns the archive's directory.
pub fn unpacked(archive: &Path, folder: &Path) -> PathBuf {
    std::fs::create_dir_all(folder).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).current_dir(folder);
    run(tar).expect(0);
    let name = archive.file_name().unwrap().to_str().unwrap();
    folder.join(name.strip_suffix(".tar.gz").unwrap())
}

/// Returns the libraries that a program needs.
fn needed(program: &Path) -> Vec<String> {
    let mut command = Command::new("objdump");
    command.arg("-p").arg(program);
    let text = run(command).expect(0).stdout;
    text.lines().filter_map(|line| Some(line.trim().strip_prefix("NEEDED")?.trim().to_owned())).collect()
}

#[test]
fn archive_is_complete_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let archive = packed(folder.path());
    let mut sum = Command::new("sha256sum");
    sum.args(["--quiet", "-c"]).arg(archive.with_extension("gz.sha256")).current_dir(folder.path());
    run(sum).expect(0);
    let host = unpacked(&archive, &folder.path().join("host"));
    let mut sums = Command::new("sha256sum");
    sums.args(["--quiet", "-c", "SHA256SUMS"]).current_dir(&host);
    run(sums).expect(0);
    let files = std::fs::read_to_string(host.join("SHA256SUMS")).unwrap();
    for name in [
        "ginlab",
        "libsoft_efa.so",
        "libnccl_ginlab.so",
        "deploy/ranks.sh",
        "deploy/run-all.sh",
        "deploy/aws/interfaces.sh",
        "deploy/slurm/ginlab.sbatch",
        "docs/two-p5.md",
        "docs/doctor.md",
        "LICENSE-MIT",
    ] {
        assert!(files.lines().any(|line| line.ends_with(&format!("  ./{name}"))), "{name} is not in:\n{files}");
    }
    let mut version = Command::new(host.join("ginlab"));
    clean(&mut version);
    version.arg("--version").current_dir(&host).env_remove("LD_LIBRARY_PATH");
    let version = run(version).expect(0).stdout;
    let kernels = version.lines().find(|line| line.starts_with("kernels by")).unwrap();
    assert!(!kernels.contains("none"), "{kernels}");
}

#[test]
fn programs_without_kernels_are_not_packed() {
    let folder = tempfile::tempdir().unwrap();
    let (from, out) = (folder.path().join("from"), folder.path().join("out"));
    [&from, &out].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let refusal = dist(&from, &out, &[]).expect(2);
    assert!(refusal.stderr.contains("no ginlab; build it with scripts/build.sh"), "{}", refusal.stderr);
    for file in ["ginlab", "libnccl_ginlab.so", "libsoft_efa.so"] {
        let at = from.join(file);
        std::fs::write(&at, "#!/bin/sh\necho 'kernels by   none'\n").unwrap();
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let refusal = dist(&from, &out, &[]).expect(1);
    assert!(refusal.stderr.contains("the program has no kernels for GPUs"), "{}", refusal.stderr);
    assert_eq!(std::fs::read_dir(&out).unwrap().filter(|file| file.as_ref().unwrap().path().is_file()).count(), 0);
}

/// A program that needs a library besides those of the C library.
#[test]
fn libraries_are_packed_only_if_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (from, out) = (folder.path().join("from"), folder.path().join("out"));
    [&from, &out].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let bash = Path::new("/bin/bash");
    for file in ["ginlab", "libnccl_ginlab.so", "libsoft_efa.so"] {
        std::fs::copy(bash, from.join(file)).unwrap();
    }
    let library = needed(bash).into_iter().find(|library| library.starts_with("libtinfo")).unwrap();
    let refusal = dist(&from, &out, &[]).expect(1);
    assert!(refusal.stderr.contains(&format!("the program needs {library}")), "{}", refusal.stderr);
    let packed = dist(&from, &out, &[&library]).expect(0);
    assert!(packed.stdout.contains(&library), "{}", packed.stdout);
}
