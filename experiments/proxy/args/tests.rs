use super::*;
use clap::Parser;

#[derive(Parser)]
struct Wrapper {
    #[command(flatten)]
    args: ProxyArgs,
}

/// Parses the options of a command line. Returns the text of the usage error if they are invalid.
pub fn parsed(options: &str) -> Result<ProxyArgs, String> {
    let words = std::iter::once("ginlab").chain(options.split_whitespace());
    let args = Wrapper::try_parse_from(words).map_err(Failure::from).map(|wrapper| wrapper.args);
    args.and_then(|args| args.check().and(args.tuples()).map(|_| args)).map_err(|failure| match failure {
        Failure::Usage(text) => text,
        other => panic!("a usage error was expected: {other:?}"),
    })
}

#[test]
fn invalid_options_print_one_line() {
    for (options, expected) in [
        ("-b 0", "--begin: must be at least 1 byte"),
        ("-b 8 -e 4", "-b/-e/-f"),
        ("--end=-1", "--end: invalid size \"-1\""),
        ("-f 1", "sweep factor 1"),
        ("-b 1X", "--begin: invalid size \"1X\": unknown unit"),
        ("-e 1T -b 512T", "-b/-e/-f"),
        ("-n 0", "--iterations: 0"),
        ("-n many", "--iterations: invalid digit"),
        ("-r 0", "--repeats: 0"),
        ("--window 0", "--window: 0"),
        ("--rails 0", "at least 1"),
        ("--rails 65", "1 to 64"),
        ("--rails 1,,2", "an entry is empty"),
        ("--grid 0", "--grid"),
        ("--grid one", "--grid"),
        ("--block 0", "--block"),
        ("--mode fast", "expected quiet, nbi, quiet-every=K"),
        ("--mode quiet-every=0", "must be at least 1 put"),
        ("--mode nbi-batch=33", "from 1 to 32"),
        ("--mode nbi,nbi-batch=4 --scope thread", "--mode: nbi-batch=K requires --scope block"),
        ("--strategy stripe", "round-robin"),
        ("--ring-slots 3", "a power of two from 1"),
        ("--ring-slots 0", "power of two"),
        ("--proxy-threads 0", "--proxy-threads: 0"),
        ("--timeout 0", "--timeout: 0"),
        ("-t 86401", "--timeout: 86401 is not in 1"),
        ("--pin first", "--pin"),
        ("--scope warp", "--scope: invalid value \"warp\": expected one of block, thread"),
        ("--volume much", "--volume"),
        ("--memory-limit 4TB", "decimal units"),
        ("--provider null --domain lo", "no domains"),
        ("-p model:p3", "expected one of model:p4d, model:p5"),
        ("-p model:p5 --domain lo", "no domains"),
        ("-p model:p4d --rails 8", "a p4d has only 4 cards"),
        ("-p worst:speed=3", "options are seed=N, delay="),
        ("-p worst --domain lo", "no domains"),
        ("-p worst --no-copy", "requires modelled cards"),
        ("--no-copy", "requires modelled cards"),
        ("--fault fire=3", "expected proxy-vanish=N, proxy-stop=N, rails-silent=N or corrupt=N"),
        ("--fault proxy-stop=soon", "expected proxy-vanish=N"),
        ("-e 512T", "2^48"),
    ] {
        let error = parsed(options).expect_err(options);
        assert!(error.contains(expected), "{options}: {error}");
        assert!(!error.contains('\n'), "{options}: {error}");
    }
}

#[test]
fn rows_contain_all_combinations() {
    let args = parsed("-b 1K -e 4K -f 2 --rails 1,4 --strategy single,split --grid 1,8,32 --block 32,64");
    let rows = args.expect("good").tuples().expect("good");
    assert_eq!(rows.len(), 3 * 2 * 2 * 3 * 2);
    assert!(rows.iter().enumerate().all(|(index, row)| !rows[..index].contains(row)));
}

#[test]
fn ranks_must_pair() {
    let check = |options| parsed(options).expect("good").check_ranks();
    assert!(check("")(1).is_err() && check("")(3).is_err());
    assert!(check("")(2).is_ok() && check("")(8).is_ok());
    assert!(check("-p null")(1).is_ok());
}
