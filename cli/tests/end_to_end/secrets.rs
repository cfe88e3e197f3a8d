//! Only the host is told the kernel's address.

use crate::common::*;

/// The first address of the kernel half; the last page holds error numbers.
const KERNEL_HALF: std::ops::Range<u64> = 0xffff_8000_0000_0000..0xffff_ffff_ffff_f000;

/// Numbers of a text, hexadecimal or decimal, that are addresses of the kernel half.
fn kernel_addresses(text: &str) -> Vec<&str> {
    let is_address = |word: &&str| {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let hexadecimal = u64::from_str_radix(digits, 16);
        [hexadecimal.ok(), word.parse().ok()].into_iter().flatten().any(|n| KERNEL_HALF.contains(&n))
    };
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(is_address).collect()
}

/// Returns the slide that the kernel tells the host, as hexadecimal digits.
fn slide(stderr: &str) -> String {
    let (_, rest) = stderr.split_once("image slide 0x").expect("the host is told the slide");
    rest.chars().take_while(char::is_ascii_hexdigit).collect()
}

#[test]
fn root_finds_no_kernel_address_and_others_no_log() {
    if kernel() != "freehold" {
        // A stock Linux tells its addresses to root: kernel.kptr_restrict is 0 there.
        return;
    }
    let program = guest_program("workloads/secrets");
    let outcome = run(&["--verbose", "--cpus", "2"], &[text(&program)], b"").expect(0);
    let said = outcome.text();
    let slide = slide(&outcome.stderr);
    // A slide of few digits is a round number, which may mean something else.
    let is_round = slide.trim_end_matches('0').len() < 3;
    assert!(is_round || !said.contains(&slide), "the slide {slide} is in: {said}");
    assert!(said.contains("mode of /dev/kmsg: 600\n"), "{said}");
    let probe = "probe 0x****************, 0x**************** and ******************** stay";
    assert!(said.contains(probe), "{said}");
    // The host itself gets the log unchanged.
    assert!(outcome.stderr.contains("probe 0xffffffff81234567, 0xffff888000001000"), "{}", outcome.stderr);
    let read: u64 = said
        .lines()
        .find_map(|line| line.strip_prefix("read ")?.split_once(" files")?.0.parse().ok())
        .expect("a count");
    assert!(read > 150, "only {read} files were read: {said}");
    assert!(said.contains(" 0 findings\n"), "{said}");
    let refused = (0..=10).map(|action| format!(", {action} Operation not permitted")).collect::<String>();
    assert!(said.contains(&format!("user 1000: open Permission denied{refused}\n")), "{said}");
}

#[test]
fn a_panic_is_told_with_symbols_and_with_addresses_only_on_request() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    let mut slides = Vec::new();
    for verbose in [false, true] {
        let mut options = vec!["--json", text(&file)];
        options.extend(verbose.then_some("--verbose"));
        let words = ["busybox", "ash", "-c", "echo c > /proc/sysrq-trigger; sleep 5"];
        let outcome = run(&options, &words, b"").expect(255);
        let json = std::fs::read_to_string(&file).expect("written");
        assert!(outcome.stderr.contains("sysrq"), "a function has its name: {}", outcome.stderr);
        assert!(json.contains("sysrq"), "a function has its name: {json}");
        for said in [&outcome.stderr, &json] {
            assert_eq!(kernel_addresses(said).is_empty(), !verbose, "{said}");
        }
        assert_eq!(outcome.stderr.contains("image slide"), verbose, "{}", outcome.stderr);
        slides.extend(verbose.then(|| slide(&outcome.stderr)));
    }
    assert_eq!(slides.len(), 1);
}

#[test]
fn where_the_kernel_lies_follows_from_the_seed() {
    if kernel() != "freehold" {
        return;
    }
    let place = |seed: &str| {
        let options = ["--icount", "--seed", seed, "--verbose"];
        slide(&run(&options, &["busybox", "true"], b"").expect(0).stderr)
    };
    let first = place("5");
    assert_eq!(first, place("5"));
    assert_ne!(first, place("6"));
    assert!(first.ends_with("00000"), "a slide of whole pages of 2 MiB: {first}");
}

/// Linux 6.1's list of weaknesses on QEMU's emulated CPU, without spectre_v2.
const WEAKNESSES: &str = "\
gather_data_sampling:Not affected
indirect_target_selection:Not affected
itlb_multihit:Not affected
l1tf:Not affected
mds:Not affected
meltdown:Not affected
mmio_stale_data:Not affected
reg_file_data_sampling:Not affected
retbleed:Not affected
spec_rstack_overflow:Not affected
spec_store_bypass:Not affected
spectre_v1:Mitigation: usercopy/swapgs barriers and __user pointer sanitization
srbds:Not affected
tsa:Not affected
tsx_async_abort:Not affected
vmscape:Not affected
";

#[test]
fn vulnerabilities_are_told_in_linux_words() {
    let command = "cd /sys/devices/system/cpu/vulnerabilities; grep . * | grep -v spectre_v2; cat spectre_v2; \
        grep -c 'bugs.* spectre_v1 spectre_v2' /proc/cpuinfo";
    let said = run(&[], &["busybox", "ash", "-c", command], b"").expect(0).text();
    // This kernel is compiled without retpolines.
    let second = match kernel().as_str() {
        "freehold" => "Vulnerable; STIBP: disabled\n",
        _ => "Mitigation: Retpolines; STIBP: disabled",
    };
    assert!(said.starts_with(&format!("{WEAKNESSES}{second}")), "{said}");
    assert!(said.ends_with("\n1\n"), "{said}");
}
