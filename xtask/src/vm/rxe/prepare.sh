#!/bin/busybox sh
# The guest's network, and rxe0 on it. eth0 connects to the model's Ethernet port, which answers no neighbour discovery:
# its address is that of device 0, port 1, of every `verbless-model run`. eth1 leads to the host, at 10.0.2.2, by TCP
# alone.
ip=/usr/sbin/ip # busybox has a lesser one
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
$ip link set eth0 up
# Its address comes with its carrier.
tries=0
until $ip -6 address show dev eth0 scope link | grep -q 'inet6 fe80:' || [ $tries -gt 100 ]; do usleep 100000; tries=$((tries + 1)); done
$ip -6 neigh replace fe80::56:4cff:fe00:1 lladdr 02:56:4c:00:00:01 nud permanent dev eth0
$ip address add 192.0.2.2/24 dev eth0
$ip neigh replace 192.0.2.1 lladdr 02:56:4c:00:00:01 nud permanent dev eth0
$ip address add 10.0.2.15/24 dev eth1
$ip link set eth1 up
/usr/bin/rdma link add rxe0 type rxe netdev eth0
# eth2 connects to the host's network, by a tap device.
if [ -e /sys/class/net/eth2 ]; then
    $ip address add 198.51.100.2/24 dev eth2
    $ip link set eth2 up
    /usr/bin/rdma link add rxe1 type rxe netdev eth2
fi
