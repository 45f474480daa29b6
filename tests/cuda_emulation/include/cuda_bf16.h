// Nothing is needed: `launch.h` comes first.
#pragma once
